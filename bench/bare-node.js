/**
 * The floor of memory: Node without any program. It is JavaScript, because the compiler that strips types would stay in
 * memory.
 */
process.stdout.write(JSON.stringify(process.memoryUsage.rss()));
