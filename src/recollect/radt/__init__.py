"""RA-DT and the methods beside it: AD, DPT, DT."""
