"""The `devkit` command: it makes training on Ray debuggable. Importing this loads neither ray nor torch."""
