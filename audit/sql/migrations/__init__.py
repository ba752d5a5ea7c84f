"""How the tables of reports came to be, step by step; a line of its own beside the registry's."""
