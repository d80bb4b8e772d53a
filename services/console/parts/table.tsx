import type { ComponentChildren } from 'preact'

interface TableProps {
  readonly label: string
  /** Column heads. An empty head belongs to a column of buttons. */
  readonly columns: readonly string[]
  readonly children: ComponentChildren
}

/** A table that becomes a list of cards on a narrow screen. */
export function Table({ label, columns, children }: TableProps) {
  return (
    <table class="sheet" aria-label={label}>
      <thead>
        <tr>
          {columns.map((column) => (
            <th key={column} scope="col">
              {column || <span class="visually-hidden">Actions</span>}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>{children}</tbody>
    </table>
  )
}

/** @param column The column head, shown next to the value on a narrow screen */
export function Cell({ column = '', children }: { readonly column?: string; readonly children: ComponentChildren }) {
  return (
    <td data-column={column}>
      <div>{children}</div>
    </td>
  )
}
