/** The commands of docs/control.md, pasted one block after the other. */
import { expect, test } from "vitest";
import { blocksOf, paste } from "./support/paste.ts";
import { chatLine, startTestService } from "./support/service.ts";
import { startUpstream } from "./support/upstream.ts";

const blocks = blocksOf("control.md", "sh");

test("every command of the guide works when pasted, on a batch that allows it", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const lines = [chatLine("capital", "Lima?"), chatLine("bad", "[[status 400]]")];
  const ended = await service.run(lines);
  upstream.hold();
  const held = await service.submit(lines);
  const [setup = "", ...commands] = blocks;
  const settings: Readonly<Record<string, string>> = {
    BATCHD: service.url,
    FILE: ended.input_file_id,
  };
  // A pause needs a batch that runs, and the rest one that has ended. The last block deletes.
  const batchFor = (command: string) => (/\/pause|DELETE/.test(command) ? held.id : ended.id);
  for (const command of commands.filter((each) => !/DELETE/.test(each))) {
    const script = Object.entries({ ...settings, BATCH: batchFor(command) }).reduce(
      (text, [name, value]) =>
        text.replace(new RegExp(`^export ${name}=\\S*`, "m"), `export ${name}=${value}`),
      setup,
    );
    const { output } = await paste(`${script}\n${command}`);
    expect(output.trim().length, command).toBeGreaterThan(0);
    expect(output, command).not.toMatch(/^\{"error"|command not found|curl:/m);
  }
  const deletion = commands.find((each) => /DELETE/.test(each)) ?? "";
  for (const [i, command] of deletion.trim().split("\n").entries()) {
    const script = Object.entries({ ...settings, BATCH: i === 0 ? held.id : ended.id }).reduce(
      (text, [name, value]) =>
        text.replace(new RegExp(`^export ${name}=\\S*`, "m"), `export ${name}=${value}`),
      setup,
    );
    expect((await paste(`${script}\n${command}`)).output).toContain('"deleted":true');
  }
  expect(commands.length).toBeGreaterThan(7);
  upstream.release();
});
