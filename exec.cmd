@rem "exec" in the scripts of package.json hands the process over to Node.js, so that a signal for npm reaches it.
@rem cmd.exe has no such command, but looks here first: it only runs the rest of the line.
@%*
