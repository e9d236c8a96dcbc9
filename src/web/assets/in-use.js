/** Whether a person is at work on the page. */

/** Returns whether the page has what a load would lose: a question, an upload, or what a person has typed or chosen. */
export function isInUse() {
  const isChanged = [...document.querySelectorAll("input, select, textarea")].some(differs);
  return isChanged || document.querySelector("dialog[open], .upload-state:not([hidden])") !== null;
}

/** @param {Element} field */
function differs(field) {
  if (field instanceof HTMLSelectElement) {
    const marked = [...field.options].findIndex(({ defaultSelected }) => defaultSelected);
    return field.selectedIndex !== Math.max(0, marked);
  }
  if (field instanceof HTMLTextAreaElement) return field.value !== field.defaultValue;
  if (!(field instanceof HTMLInputElement)) return false;
  // The value of a box is no state of it.
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  return field.value !== field.defaultValue;
}
