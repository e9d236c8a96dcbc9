/** The routes of projects, for operators. */
import type { Projects } from "../api/projects.ts";
import { type ProjectObject, PutProject } from "../contract/project.ts";
import type { Page } from "../store/page.ts";
import { parseBody, withoutNulls } from "./body.ts";
import { answerJson, readJson } from "./json.ts";
import { answerPage } from "./list.ts";
import { presentProject } from "./present.ts";
import { adminPage, assertKnownParams } from "./query.ts";
import type { Routes } from "./routes.ts";

export function mountProjects(app: Routes, projects: Projects): void {
  app.post("/v1/admin/projects", async (c) => {
    assertKnownParams(c, []);
    const { name, ...rules } = parseBody(PutProject, withoutNulls(await readJson(c)));
    c.set("objectId", name);
    return answerJson(c, presentProject(await projects.put(name, rules)));
  });

  app.get("/v1/admin/projects", async (c) =>
    answerPage(c, adminPage(c), {
      read: async (query): Promise<Page<ProjectObject>> => {
        const page = await projects.list(query);
        return { ...page, data: page.data.map(presentProject) };
      },
      present: (project) => project,
    }),
  );

  app.get("/v1/admin/projects/:id", async (c) => {
    assertKnownParams(c, []);
    return answerJson(c, presentProject(await projects.find(c.req.param("id"))));
  });

  app.delete("/v1/admin/projects/:id", async (c) => {
    assertKnownParams(c, []);
    const id = c.req.param("id");
    await projects.delete(id);
    return answerJson(c, { id, object: "project", deleted: true });
  });
}
