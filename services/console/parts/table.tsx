import type { ComponentChildren } from 'preact'

interface TableProps {
  readonly label: string
  /** Names of the columns; an empty one holds buttons. */
  readonly columns: readonly string[]
  /** Its rows, of {@link Cell cells}. */
  readonly children: ComponentChildren
}

/** A table that becomes a list of cards where it is narrow. */
export function Table({ label, columns, children }: TableProps) {
  return (
    <table class="sheet" aria-label={label}>
      <thead>
        <tr>
          {columns.map((column) => (
            <th key={column} scope="col">
              {column || <span class="unseen">Actions</span>}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>{children}</tbody>
    </table>
  )
}

/** What an entry has in one column. @param of The column's name, which stands beside it where the table is narrow */
export function Cell({ of = '', children }: { readonly of?: string; readonly children: ComponentChildren }) {
  return (
    <td data-of={of}>
      <div>{children}</div>
    </td>
  )
}
