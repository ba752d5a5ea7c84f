"""Copies of the log on other machines: who sends it, who follows."""
