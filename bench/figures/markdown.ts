/** A number with so many decimals; a dash where there is none. */
export function show(value: number, decimals: number): string {
  return Number.isFinite(value) ? value.toFixed(decimals) : '–'
}

/** The lines of a Markdown table. */
export function renderTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n')
}
