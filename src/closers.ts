/** Closes the parts that were opened, in reverse. A part that fails to close must not keep the others open. */
export class Closers {
  readonly #closers: { name: string; close: () => Promise<void> }[] = [];

  add(name: string, close: () => Promise<void>): void {
    this.#closers.push({ name, close });
  }

  async closeAll(): Promise<void> {
    const failures: Error[] = [];
    for (const { name, close } of this.#closers.splice(0).reverse()) {
      await close().catch((cause: unknown) => {
        failures.push(new Error(`closing ${name} failed`, { cause }));
      });
    }
    if (failures.length > 0) throw new AggregateError(failures, "unclean shutdown");
  }
}
