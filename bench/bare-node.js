/** The floor of memory: Node with nothing in it. Not TypeScript, because what strips types stays in memory. */
process.stdout.write(JSON.stringify(process.memoryUsage.rss()));
