/*
 * CSV output by RFC 4180, for spreadsheets.
 *
 * A spreadsheet runs a cell as a formula if the cell begins with = + - @ or a control character (OWASP, CSV injection). Texts such as names
 * and models come from users, so such a text gets an apostrophe in front. Numbers are written unchanged.
 */

const FORMULA = /^[=+\-@\t\r\n]/
const QUOTED = /[",\r\n]|^\s|\s$/

export type CsvCell = string | number | boolean | null | undefined

/** One line of CSV with its line break. Null and undefined are empty cells. */
export function csvLine(cells: readonly CsvCell[]): string {
  return `${cells.map(cellText).join(',')}\r\n`
}

function cellText(cell: CsvCell): string {
  if (typeof cell !== 'string') return cell === null || cell === undefined ? '' : String(cell)
  const text = FORMULA.test(cell) ? `'${cell}` : cell
  return QUOTED.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
