/** A Markdown table. Vertical bars in cells are escaped. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.map(escaped).join(' | ')} |`).join('\n')
}

function escaped(cell: string): string {
  return cell.replaceAll(/(?<!\\)\|/g, '\\|')
}
