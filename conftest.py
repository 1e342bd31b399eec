"""Pytest's plugins of this project, wherever pytest is started."""

pytest_plugins = [
    "pytester",
    "tests.plugins.bytecode",
    "tests.plugins.tiers",
    "tests.plugins.once_more",
    "tests.plugins.leavings",
    "tests.plugins.deadlines",
    "tests.plugins.at_work",
    "tests.plugins.scheduling",
    "tests.plugins.users",
]
