/** What scripts of packages define for the page. */
declare const Idiomorph: typeof import("idiomorph").Idiomorph;
