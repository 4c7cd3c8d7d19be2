"""What commands read and print: tables, pictures, files, errors and help."""
