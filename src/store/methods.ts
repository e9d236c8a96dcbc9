type MethodsOf<P> = { readonly [K in keyof P]: P[K] };

/** Returns the methods of a part of a store, to be spread into the whole. Those of an instance of a class cannot be. */
export function methodsOf<P extends object>(part: P): MethodsOf<P> {
  const names = Object.getOwnPropertyNames(Object.getPrototypeOf(part));
  const methods = names
    .filter((name) => name !== "constructor")
    .map((name) => [name, (part as Record<string, () => unknown>)[name]?.bind(part)]);
  return Object.fromEntries(methods);
}
