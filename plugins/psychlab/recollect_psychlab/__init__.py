"""A plug-in of Recollect: the world `psychlab`."""
