"""The terminal view of `flyball top`: textual's part alone, given overviews by a source."""
