/** The contract as an OpenAPI document, made from the schemas that the server itself uses. */
import { stringify } from "yaml";
import { createDocument } from "zod-openapi";
import { PATHS } from "./openapi-routes.ts";

const DESCRIPTION = `A drop-in server for the OpenAI Batch API: upload a file of requests, create a batch, read its output file.

Everything under \`/v1\` is also there under \`/openai/v1\`. Times are Unix seconds, ids are opaque, and a key that has no value is null rather than absent.`;

/** As a client may rely on it; it grows with the paths, not with the releases of the server. */
const API_VERSION = "1";

export const openApiDocument = () =>
  createDocument(
    {
      openapi: "3.1.0",
      info: {
        title: "batchd",
        version: API_VERSION,
        description: DESCRIPTION,
        license: { name: "Apache 2.0", identifier: "Apache-2.0" },
      },
      servers: [{ url: "http://127.0.0.1:8080" }],
      security: [{ key: [] }, {}],
      tags: [
        { name: "Files", description: "What goes into a batch and what comes out of it." },
        { name: "Batches", description: "Files of requests on their way through a model." },
        { name: "Models", description: "What the upstreams serve." },
        { name: "Operation", description: "For the supervisor of the process." },
      ],
      paths: PATHS,
      components: {
        securitySchemes: {
          key: {
            type: "http",
            scheme: "bearer",
            description: "A key of `auth.keys`. A server without them asks for none.",
          },
        },
      },
    },
    {
      override: ({ jsonSchema, io }) => {
        // Clients must not break when an object grows a key.
        if (io === "output" && jsonSchema.additionalProperties === false) {
          delete jsonSchema.additionalProperties;
        }
        // Zod bounds every integer by what a JavaScript number holds, which tells a reader nothing.
        if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
        if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
      },
    },
  );

export const openApiYaml = (): string =>
  stringify(openApiDocument(), {
    aliasDuplicateObjects: false,
    blockQuote: "literal",
    lineWidth: 0,
  });
