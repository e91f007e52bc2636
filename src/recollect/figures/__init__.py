"""Statistics and figures. `writing.render` draws one figure; a kind of figure is one module, see `registry`."""
