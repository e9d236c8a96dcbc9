/** Builds the OpenAPI document from the schemas that the server itself uses, so that the two cannot differ. */
import { stringify } from "yaml";
import { createDocument } from "zod-openapi";
import { version } from "../version.ts";
import { HEADERS } from "./openapi-headers.ts";
import { PATHS } from "./openapi-routes.ts";
import { WEBHOOKS } from "./openapi-webhooks.ts";

const DESCRIPTION = `A drop-in server for the OpenAI Batch API: upload a file of requests, create a batch, read its output file.

Everything under \`/v1\` is also there under \`/openai/v1\`, and, as Azure's clients ask for it, under \`/openai\` and \`/openai/deployments/NAME\`, whatever \`api-version\` they name. Endpoints may be written without their \`/v1\`. A GET may always be a HEAD. Times are Unix seconds, ids are opaque, and a key that has no value is null rather than absent.`;

export const openApiDocument = () =>
  createDocument(
    {
      openapi: "3.1.0",
      info: {
        title: "batchd",
        version,
        description: DESCRIPTION,
        license: { name: "Apache 2.0", identifier: "Apache-2.0" },
      },
      servers: [
        // The address is relative to the document, so that it also works behind a proxy that adds a path prefix.
        { url: ".", description: "The server that shows this document." },
        { url: "http://127.0.0.1:8080", description: "A server with its default address." },
      ],
      security: [{ key: [] }, { azureKey: [] }, {}],
      tags: [
        { name: "Files", description: "What goes into a batch and what comes out of it." },
        { name: "Uploads", description: "Large files, which come in parts." },
        { name: "Batches", description: "Files of requests on their way through a model." },
        { name: "Requests", description: "Single ones, answered while the client waits." },
        { name: "Models", description: "What the upstreams serve." },
        { name: "Administration", description: "Who may use the server." },
        { name: "Usage", description: "What answers took and cost." },
        { name: "Operation", description: "For those who run the server." },
      ],
      paths: PATHS,
      webhooks: WEBHOOKS,
      components: {
        headers: HEADERS,
        securitySchemes: {
          key: {
            type: "http",
            scheme: "bearer",
            description:
              "A key of `auth.keys`, with one of the scopes that are listed. A server without keys asks for none.",
          },
          azureKey: {
            type: "apiKey",
            in: "header",
            name: "api-key",
            description: "The same key in the header of Azure's clients.",
          },
        },
      },
    },
    {
      override: ({ jsonSchema, io }) => {
        // Clients must not break when an object gets a new key.
        if (io === "output" && jsonSchema.additionalProperties === false) {
          delete jsonSchema.additionalProperties;
        }
        // Zod bounds every integer by the range of a JavaScript number, which means nothing to a reader.
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
