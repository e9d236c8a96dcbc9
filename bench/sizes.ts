/** The sizes of the bench: large enough to trust the figures, or only large enough to see them. */
export interface Sizes {
  /** The lines of the batch for throughput. */
  readonly smallLineCount: number;
  /** The number of servers, each with one cold and two warm batches between runs of the floor. */
  readonly throughputStarts: number;
  /** The share of the lines that `steady` sends. */
  readonly steadyShare: number;
  /** The lines of a batch whose page is open. */
  readonly pagesLineCount: number;
  readonly pagesRounds: number;
  readonly resentLineCount: number;
  readonly resentRounds: number;
  /** The number of lines of {@link LARGE_LINE_BYTES} each, in and out. */
  readonly largeLineCount: number;
  /** The lines of the batch to whose memory the large one is compared. */
  readonly flatLineCount: number;
  readonly validationBytes: number;
  readonly copyBytes: number;
  /** The number of copies, uploads and downloads, of which the best counts. */
  readonly copyRounds: number;
  readonly inFlightCount: number;
  readonly inFlightLineCount: number;
  /** The time for which the model servers of `dispatch` have work. */
  readonly dispatchSeconds: number;
  /** The share of the lines that `dispatch` sends to servers with a fixed capacity. */
  readonly dispatchShare: number;
  readonly firstRequestCount: number;
  readonly openBatchCount: number;
  readonly startRounds: number;
  /** The open batches, and their open chunks, in the database of `store`. */
  readonly storeBatchCount: number;
  readonly storeChunkCount: number;
  /** The lines of the batch of a fleet, for each of its workers. */
  readonly fleetLinesPerWorker: number;
}

export const LARGE_LINE_BYTES = 20_000;

export const FULL: Sizes = {
  smallLineCount: 50_000,
  throughputStarts: 3,
  steadyShare: 1,
  pagesLineCount: 20_000,
  pagesRounds: 3,
  resentLineCount: 20_000,
  resentRounds: 3,
  largeLineCount: 50_000,
  flatLineCount: 5_000,
  validationBytes: 200_000_000,
  copyBytes: 400_000_000,
  copyRounds: 3,
  inFlightCount: 5_000,
  inFlightLineCount: 15_000,
  dispatchSeconds: 36,
  dispatchShare: 1,
  firstRequestCount: 20,
  openBatchCount: 100,
  startRounds: 3,
  storeBatchCount: 10_000,
  storeChunkCount: 1_000_000,
  fleetLinesPerWorker: 12_000,
};

export const QUICK: Sizes = {
  smallLineCount: 6_000,
  throughputStarts: 1,
  steadyShare: 0.2,
  pagesLineCount: 4_000,
  pagesRounds: 1,
  resentLineCount: 4_000,
  resentRounds: 1,
  largeLineCount: 5_000,
  flatLineCount: 1_000,
  validationBytes: 60_000_000,
  copyBytes: 60_000_000,
  copyRounds: 2,
  inFlightCount: 1_000,
  inFlightLineCount: 1_500,
  dispatchSeconds: 6,
  dispatchShare: 0.1,
  firstRequestCount: 8,
  openBatchCount: 100,
  startRounds: 1,
  storeBatchCount: 100,
  storeChunkCount: 10_000,
  fleetLinesPerWorker: 3_000,
};
