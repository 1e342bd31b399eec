"""VS Code beside the command line: its launch configurations and tasks, and the extension that ships with devkit."""
