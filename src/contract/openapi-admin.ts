/** The routes for operators, for the OpenAPI document. */
import { z } from "zod";
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { ADMIN_PAGE, CreatedKey, CreateKey, DeletedKey, KeyObject, KeyPage } from "./key.ts";
import {
  answer,
  BAD_REQUEST,
  BODY_TOO_LARGE,
  jsonBody,
  KEY_NOT_FOUND,
  PROJECT_CONFLICT,
  PROJECT_NOT_FOUND,
} from "./openapi-answers.ts";
import {
  CREATE_KEY_EXAMPLE,
  CREATED_KEY_EXAMPLE,
  DELETED_KEY_EXAMPLE,
  DELETED_PROJECT_EXAMPLE,
  KEY_EXAMPLE,
  PROJECT_EXAMPLE,
  PUT_PROJECT_EXAMPLE,
  pageExample,
  UPSTREAM_EXAMPLE,
} from "./openapi-examples.ts";
import { pageQuery } from "./page.ts";
import { DeletedProject, ProjectObject, ProjectPage, PutProject } from "./project.ts";
import { UpstreamList } from "./upstream.ts";

const KEY_PATH = { path: z.object({ key_id: z.string().meta({ example: KEY_EXAMPLE.id }) }) };
const PROJECT_PATH = {
  path: z.object({ project_id: z.string().meta({ example: PROJECT_EXAMPLE.id }) }),
};

export const ADMIN_PATHS: ZodOpenApiPathsObject = {
  "/v1/admin/keys": {
    post: {
      operationId: "createKey",
      summary: "Make a key",
      description:
        "The answer is the only one that has the key itself: the server stores a digest. Every server takes the key within five seconds. An `Idempotency-Key` has no effect.",
      requestBody: jsonBody(CreateKey, CREATE_KEY_EXAMPLE),
      responses: {
        "200": answer("The new key.", CreatedKey, { created: CREATED_KEY_EXAMPLE }),
        "400": BAD_REQUEST,
        "409": PROJECT_CONFLICT,
        "413": BODY_TOO_LARGE,
      },
    },
    get: {
      operationId: "listKeys",
      summary: "List the keys that were made, newest first",
      description: "Keys of the configuration are not among them. Expired keys are.",
      requestParams: { query: z.object(pageQuery(ADMIN_PAGE)) },
      responses: {
        "200": answer("A page of keys.", KeyPage, { page: pageExample(KEY_EXAMPLE) }),
        "400": BAD_REQUEST,
        "404": KEY_NOT_FOUND,
      },
    },
  },
  "/v1/admin/keys/{key_id}": {
    get: {
      operationId: "retrieveKey",
      summary: "Get a key that was made",
      requestParams: KEY_PATH,
      responses: {
        "200": answer("The key, without its text.", KeyObject, { key: KEY_EXAMPLE }),
        "404": KEY_NOT_FOUND,
      },
    },
    delete: {
      operationId: "revokeKey",
      summary: "Revoke a key",
      description:
        "Every server refuses it within five seconds. Requests that began before go on to their end.",
      requestParams: KEY_PATH,
      responses: {
        "200": answer("The key is revoked.", DeletedKey, { deleted: DELETED_KEY_EXAMPLE }),
        "404": KEY_NOT_FOUND,
      },
    },
  },
  "/v1/admin/projects": {
    post: {
      operationId: "putProject",
      summary: "Make a project, or give it other rules",
      description:
        "Rules that are left out have no limit, also where the project had one. Every server follows them within five seconds. A project of the configuration cannot be changed.",
      requestBody: jsonBody(PutProject, PUT_PROJECT_EXAMPLE),
      responses: {
        "200": answer("The project.", ProjectObject, { project: PROJECT_EXAMPLE }),
        "400": BAD_REQUEST,
        "409": PROJECT_CONFLICT,
        "413": BODY_TOO_LARGE,
      },
    },
    get: {
      operationId: "listProjects",
      summary: "List the projects that were made, newest first",
      description: "Projects of the configuration are not among them.",
      requestParams: { query: z.object(pageQuery(ADMIN_PAGE)) },
      responses: {
        "200": answer("A page of projects.", ProjectPage, { page: pageExample(PROJECT_EXAMPLE) }),
        "400": BAD_REQUEST,
        "404": PROJECT_NOT_FOUND,
      },
    },
  },
  "/v1/admin/projects/{project_id}": {
    get: {
      operationId: "retrieveProject",
      summary: "Get a project that was made",
      requestParams: PROJECT_PATH,
      responses: {
        "200": answer("The project.", ProjectObject, { project: PROJECT_EXAMPLE }),
        "404": PROJECT_NOT_FOUND,
      },
    },
    delete: {
      operationId: "deleteProject",
      summary: "Delete all data of a project",
      description:
        "Its keys, batches, files, uploads and usage, and its rules. The keys are refused within five seconds; the rest is removed soon after, and so is what requests under way store within the hour.",
      requestParams: PROJECT_PATH,
      responses: {
        "200": answer(
          "The deletion has begun. A repeated request gets the same answer for an hour.",
          DeletedProject,
          { deleted: DELETED_PROJECT_EXAMPLE },
        ),
        "404": PROJECT_NOT_FOUND,
        "409": PROJECT_CONFLICT,
      },
    },
  },
  "/v1/admin/upstreams": {
    get: {
      operationId: "listUpstreams",
      summary: "List the upstreams with their condition, at all servers together",
      description:
        "Each server reports its figures to the others every three seconds. A server without keys answers everyone who reaches it.",
      responses: {
        "200": answer("The upstreams, by name.", UpstreamList, {
          upstreams: { object: "list", data: [UPSTREAM_EXAMPLE] },
        }),
      },
    },
  },
};
