/** The pages in which lists come. */
/** A page of a list, newest first unless asked otherwise. */
export interface Page<T> {
  readonly data: readonly T[];
  readonly hasMore: boolean;
}
