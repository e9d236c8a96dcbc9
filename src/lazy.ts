/**
 * Returns a function that makes something at its first call and shares it. What could not be made is not kept: the next call
 * makes it again, because a lack of file descriptors, room or a database passes.
 */
export function lazy<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | null = null;
  return () => {
    made ??= make().catch((error: unknown) => {
      made = null;
      throw error;
    });
    return made;
  };
}
