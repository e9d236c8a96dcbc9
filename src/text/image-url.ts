/** Recognizes images in `data:` URLs, which count as far fewer tokens than the text that they are. */

/** The shortest string that is taken for an image. Most are far longer, and the many short strings must cost nothing. */
export const MIN_IMAGE_BYTES = 8 * 1024;
const IMAGE_START = /^"data:image\\?\/[\w.+-]{1,40};base64,/;
const IMAGE_START_BYTES = 64;
const IMAGE_SAMPLES = 64;
const BASE64 = /^[\w+/=\\-]*$/;

/**
 * Whether a JSON string, quotes included, is such a URL. It looks at some bytes of the base64, so that a text that only begins
 * like an image counts as a text.
 */
export function isImage(bytes: Uint8Array, start: number, end: number): boolean {
  const head = bytes.subarray(start, start + IMAGE_START_BYTES);
  if (!IMAGE_START.test(String.fromCharCode(...head))) return false;
  const step = Math.floor((end - start - 2 * IMAGE_START_BYTES) / IMAGE_SAMPLES);
  const samples = Array.from(
    { length: IMAGE_SAMPLES },
    (_, n) => bytes[start + IMAGE_START_BYTES + n * step] as number,
  );
  return BASE64.test(String.fromCharCode(...samples));
}
