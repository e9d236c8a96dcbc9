/** The part of Papa Parse that tests use: the package has no types. */
declare module "papaparse" {
  const Papa: {
    parse<Row>(
      text: string,
      options: { header: true; skipEmptyLines: true; newline: string },
    ): { readonly data: readonly Row[] };
  };
  export default Papa;
}
