/**
 * Spells and parses what is stored of a delivery's attempts: the text that the location has saved, and the place of it.
 * The name of the location may mean another place by the next attempt, which must not take the text for its own.
 */
export interface Left {
  /** It is null in what former versions have stored, which means the place that has the name. */
  readonly placeId: string | null;
  /** It is null once everything is removed. */
  readonly saved: string | null;
}

export const NOTHING_LEFT: Left = { placeId: null, saved: null };

export const leftText = (left: Left) => JSON.stringify(left);

export function parseLeft(text: string | null): Left {
  if (text === null) return NOTHING_LEFT;
  const parsed = JSON.parse(text) as Left | { readonly placeId?: undefined };
  return parsed.placeId === undefined ? { placeId: null, saved: text } : parsed;
}

export const isLeftElsewhere = ({ placeId, saved }: Left, here: string): boolean =>
  saved !== null && placeId !== null && placeId !== here;
