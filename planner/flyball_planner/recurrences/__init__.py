"""Jobs that come again and again: which batch size each run gets, by what the runs before it have cost (Zeus, NSDI '23)."""
