/** Keeps a person who uses the keyboard in their place while what has the focus goes, hides or is off for a while. */

/**
 * Returns a function that gives a lost focus back: to the element that had it, to its neighbours, or to what is around it.
 *
 * @param {Element | null} element
 * @param {readonly HTMLElement[]} [neighbours]
 */
export function keepFocus(element, neighbours = []) {
  const near = element instanceof HTMLElement ? [element, ...neighbours] : neighbours;
  const hadFocus = near.some((each) => each === document.activeElement);
  const places = [...near, ...ancestorsOf(element)];
  return () => {
    const now = document.activeElement;
    if (!hadFocus || (now instanceof HTMLElement && now !== document.body && canHaveFocus(now)))
      return;
    places.find(canHaveFocus)?.focus({ preventScroll: true });
  };
}

/**
 * Keeps a button or a field off while its work is under way, so that a second press begins none.
 *
 * @template T
 * @param {HTMLButtonElement | HTMLInputElement} element
 * @param {() => Promise<T>} work
 * @param {(result: T) => boolean} [staysOff] as where another page is on its way
 * @returns {Promise<T>}
 */
export async function offDuring(element, work, staysOff = () => false) {
  const refocus = keepFocus(element);
  element.disabled = true;
  const result = await work();
  element.disabled = staysOff(result);
  refocus();
  return result;
}

/**
 * Opens a dialog. A browser forgets the focus where its element goes meanwhile.
 *
 * @param {HTMLDialogElement} dialog
 */
export function openDialog(dialog) {
  dialog.addEventListener("close", keepFocus(document.activeElement), { once: true });
  dialog.showModal();
}

/** @param {HTMLElement} element */
const canHaveFocus = (element) =>
  (element.tabIndex >= 0 || element.hasAttribute("tabindex")) &&
  element.checkVisibility() &&
  !element.matches(":disabled");

/** @param {Element | null} element */
function ancestorsOf(element) {
  /** @type {HTMLElement[]} */
  const found = [];
  for (let each = element?.parentElement; each; each = each.parentElement) found.push(each);
  return found;
}
