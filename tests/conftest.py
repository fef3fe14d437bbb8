"""What all tests share. A room's fixtures are in a module fix_<room>.py beside this file and are named here."""

pytest_plugins = ["fix_stack", "fix_connector", "fix_crashes", "fix_spark"]
