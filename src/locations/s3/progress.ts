/**
 * Keeps what a delivery to a bucket remembers between its attempts: the upload in parts that is under way, and the
 * objects that were not there before it. Both are named before they are made, so a crash leaves none that nothing
 * knows of.
 */
import type { DeliveryProgress } from "../location.ts";

export interface SavedUpload {
  readonly bucket: string;
  readonly key: string;
  readonly uploadId: string;
}

export interface SavedProgress {
  readonly bucket: string;
  readonly deliveryId: string;
  readonly upload: SavedUpload | null;
  /** The object whose upload was about to begin: its id may be lost. */
  readonly beginning: string | null;
  /** The objects that the delivery has made, or was about to make. */
  readonly made: readonly string[];
  /** The object that makes the parcel complete. */
  readonly manifest: string;
}

export const parseSaved = (text: string) => JSON.parse(text) as SavedProgress;

export class S3Progress {
  readonly #progress: DeliveryProgress;
  #saved: SavedProgress;

  constructor(
    progress: DeliveryProgress,
    place: Pick<SavedProgress, "bucket" | "deliveryId" | "manifest">,
  ) {
    this.#progress = progress;
    const former = progress.saved === null ? null : parseSaved(progress.saved);
    const isHere = former?.bucket === place.bucket;
    this.#saved = { upload: null, beginning: null, made: [], ...(isHere && former), ...place };
  }

  /** The upload of this object that an earlier attempt has begun; null if there is none. */
  uploadOf(key: string): SavedUpload | null {
    const { upload } = this.#saved;
    return upload?.key === key ? upload : null;
  }

  async willMake(key: string): Promise<void> {
    const { made } = this.#saved;
    if (!made.includes(key)) await this.#save({ made: [...made, key] });
  }

  /** Whether an attempt may have begun an upload of this object, and died before it was saved. */
  mayHaveBegun(key: string): boolean {
    return this.#saved.beginning === key;
  }

  async willBegin(key: string): Promise<void> {
    await this.#save({ upload: null, beginning: key });
  }

  async hasBegun(upload: SavedUpload): Promise<void> {
    await this.#save({ upload, beginning: null });
  }

  async #save(changed: Partial<SavedProgress>): Promise<void> {
    this.#saved = { ...this.#saved, ...changed };
    await this.#progress.save(JSON.stringify(this.#saved));
  }
}
