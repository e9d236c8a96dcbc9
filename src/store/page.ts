/** A page of a list, newest first unless asked otherwise. */
export interface Page<T> {
  readonly data: readonly T[];
  readonly hasMore: boolean;
}

/** Makes a page of rows that were read with one more than it may have. */
export const pageOf = <Row, T>(
  rows: readonly Row[],
  limit: number,
  fromRow: (row: Row) => T,
): Page<T> => ({ data: rows.slice(0, limit).map(fromRow), hasMore: rows.length > limit });
