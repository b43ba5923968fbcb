"""One module a figure: rows of the table in, a matplotlib figure out. No figure runs a kernel."""
