"""Commands: parsing and printing only, one module each."""
