/*
 * CSV output by RFC 4180, for spreadsheets.
 *
 * A spreadsheet runs a cell as a formula if the cell begins with = + - @ or a control character (OWASP, CSV injection). Texts such as names
 * and models come from users, so a text with such a beginning gets an apostrophe in front. Numbers are written unchanged.
 */

const FORMULA = /^[=+\-@\t\r\n]/
const QUOTED = /[",;\t\r\n]|^\s|\s$/

export type CsvCell = string | number | boolean | null | undefined

/** Returns one line of CSV with its line break. Null and undefined are empty cells. */
export function csvLine(cells: readonly CsvCell[]): string {
  return exactLine(cells.map((cell) => (typeof cell === 'string' ? withoutFormula(cell) : cell)))
}

/** Returns the text, with an apostrophe in front if a spreadsheet would run it as a formula. */
export function withoutFormula(text: string): string {
  return FORMULA.test(text) ? `'${text}` : text
}

/** Like {@link csvLine}, but without apostrophes, for tables that a program reads. */
export function exactLine(cells: readonly CsvCell[], delimiter = ','): string {
  return `${cells.map(cellText).join(delimiter)}\r\n`
}

function cellText(cell: CsvCell): string {
  if (typeof cell !== 'string') return cell === null || cell === undefined ? '' : String(cell)
  return QUOTED.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell
}
