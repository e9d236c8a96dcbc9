/** Decodes percent signs, of which an address may have some. One may also stand for itself. */
export function percentDecoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
