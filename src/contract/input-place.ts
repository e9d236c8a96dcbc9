/** A file in a location of the operator, as a client names it. */
import { z } from "zod";
import { boundedText, ID_MAX_LENGTH } from "./text.ts";

/** The longest path, in characters. */
const PATH_MAX_LENGTH = 1024;

export const InputPlace = z
  .strictObject({
    location: boundedText(ID_MAX_LENGTH).min(1).describe("The name of the location."),
    path: boundedText(PATH_MAX_LENGTH).describe("The path of the file below it."),
  })
  .meta({ id: "InputPlace" });
