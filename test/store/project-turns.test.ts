import { expect, test } from "vitest";
import { claimInTurn } from "../../src/store/project-turns.ts";

/** Projects in the order of a database, of which each has something that waits. */
function waitingOf(projects: readonly string[]) {
  const asked: string[] = [];
  const find = (project: string) => {
    asked.push(project);
    const next = projects[projects.indexOf(project) + 1];
    return next === undefined ? null : { project: next };
  };
  return { asked, find };
}

test("the next project behind the former one is first, and after the last one the first", async () => {
  const { find } = waitingOf(["a", "B", "c"]);
  const claim = ({ project }: { readonly project: string }) => project;
  const next = (former: string, except: readonly string[] = []) =>
    claimInTurn({ former, except }, { find, claim });
  expect(await next("")).toBe("a");
  expect(await next("a")).toBe("B");
  expect(await next("c")).toBe("a");
  expect(await next("B", ["c"])).toBe("a");
  expect(await next("B", ["a", "c"])).toBe("B");
});

test("a round ends where it began, however many projects may have no more", async () => {
  const projects = ["a", "B", "c", "D"];
  const { asked, find } = waitingOf(projects);
  const claim = () => expect.fail("none may have more");
  expect(await claimInTurn({ former: "B", except: projects }, { find, claim })).toBeNull();
  expect(asked).toEqual(["B", "c", "D", "", "a", "B"]);
});

test("a project whose batch another process has claimed is passed over", async () => {
  const { find } = waitingOf(["a", "b"]);
  const claim = ({ project }: { readonly project: string }) => (project === "a" ? null : project);
  expect(await claimInTurn({ former: "", except: [] }, { find, claim })).toBe("b");
});
