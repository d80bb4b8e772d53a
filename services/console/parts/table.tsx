import { useSignal } from '@preact/signals'
import { type ComponentChildren, createContext } from 'preact'
import { useContext } from 'preact/hooks'
import { fetchApi } from '#services/console/api/client.ts'
import { ageText, dateTimeText, serviceNow } from '#services/console/api/clock.ts'
import { type CsvCell, csvLine } from '#shared/lib/csv.ts'
import { durationText } from '#shared/lib/duration.ts'
import { download, ErrorText, fileNameOf, useAction, usePoll } from './parts.tsx'

/*
 * The table of all lists. Rules of the layout:
 *
 * 1. Numbers, durations and ages are aligned to the right and never cut. All other values are aligned to the left.
 * 2. The `main` columns take the free width, and their values may wrap. Other values have one line. If the window is too small for them, they end in
 *    an ellipsis, and the pointer shows the whole text.
 * 3. A missing value is the text `–`.
 * 4. The head stays visible while the page scrolls.
 * 5. In a narrow window, a row is a card of two or three lines: `title` and `end`, the main value, and the other values in one line. The head of
 *    the column precedes each number. Missing values and the columns `hidden` are left out.
 */

interface Card {
  /** Column at the start of the first line. Default: the first column. */
  readonly title?: string
  /** Column at the end of the first line, such as a status or an age. */
  readonly end?: string
  readonly hidden?: readonly string[]
}

interface Layout {
  readonly columns: readonly string[]
  /** Columns of numbers, durations and ages. */
  readonly numbers?: readonly string[]
  /** Columns that take the free width. Default: the first column. */
  readonly main?: readonly string[]
  /** Columns that a window of less than 1400 pixels leaves out. */
  readonly optional?: readonly string[]
  readonly card?: Card
}

interface TableProps extends Layout {
  readonly label: string
  readonly children: ComponentChildren
}

const TableLayout = createContext<Layout>({ columns: [] })

/** @param columns Column heads. A column of buttons has an empty head */
export function Table({ label, children, ...layout }: TableProps) {
  const { columns, numbers = [], main = columns.slice(0, 1) } = layout
  const widthOf = (column: string) => {
    if (main.includes(column)) return 'minmax(150px, 1fr)'
    return column === '' || numbers.includes(column) ? 'max-content' : 'minmax(0, auto)'
  }
  return (
    <TableLayout.Provider value={layout}>
      <table
        class="sheet"
        aria-label={label}
        style={{ gridTemplateColumns: columns.map(widthOf).join(' ') }}
        onPointerOver={({ target }) => showWhole(target as Element)}
      >
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column} scope="col" {...placeOf(column, layout)}>
                {column || <span class="visually-hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </TableLayout.Provider>
  )
}

interface CellProps {
  /** The column head. Empty for the column of buttons. */
  readonly column?: string
  readonly children: ComponentChildren
}

export function Cell({ column = '', children }: CellProps) {
  const { class: classes, ...place } = placeOf(column, useContext(TableLayout))
  return (
    <td class={children === MISSING ? `${classes} missing` : classes} {...place}>
      <div>{children}</div>
    </td>
  )
}

const MISSING = '–'

/**
 * Returns the attributes of all cells of a column. Each cell has an explicit column number in the grid. Otherwise a column that is left out
 * would shift the columns after it.
 */
function placeOf(column: string, { columns, numbers = [], main, optional = [], card = {} }: Layout) {
  const classes = {
    number: numbers.includes(column),
    main: (main ?? columns.slice(0, 1)).includes(column),
    optional: optional.includes(column),
    'card-title': column === (card.title ?? columns[0]),
    'card-end': column === card.end,
    'card-hidden': card.hidden?.includes(column),
    buttons: column === '',
  }
  const names = Object.entries(classes).flatMap(([name, isSet]) => (isSet ? [name] : []))
  return { class: names.join(' '), 'data-column': column, style: { gridColumn: String(columns.indexOf(column) + 1) } }
}

/** Shows the whole text on hover, as the `title` of the cell, if the cell cuts the text with an ellipsis. */
function showWhole(target: Element): void {
  const cut = target.closest<HTMLElement>('.below, td > div')
  if (cut && cut.scrollWidth > cut.clientWidth && !target.closest('[title]')) cut.title = cut.innerText
}

interface ExportProps {
  /** Name of the exported table in the label of the button, such as `top spenders`. */
  readonly what: string
  /** Path of the API that returns CSV. */
  readonly path?: string
  /** Name and rows of the CSV file, for a table that no path of the API returns as CSV. */
  readonly file?: string
  readonly rows?: readonly (readonly CsvCell[])[]
}

export function ExportCsv({ what, path, file = '', rows = [] }: ExportProps) {
  const { isBusy, problem, run } = useAction()
  const save = async () => {
    if (path === undefined) return download(file, rows.map(csvLine).join(''))
    const response = await fetchApi(path)
    download(fileNameOf(response), await response.blob())
  }
  return (
    <>
      <ErrorText text={problem.value} />
      <button type="button" class="small" disabled={isBusy.value} onClick={() => void run(save)}>
        Export CSV<span class="visually-hidden"> of the {what}</span>
      </button>
    </>
  )
}

/** The age of a time, such as `3 min ago`. The pointer shows the time. */
export function Age({ at }: { readonly at: number }) {
  return <span title={dateTimeText(at)}>{ageText(at)}</span>
}

/** The time since the start of running work, such as `for 12 s`, updated every second. */
export function Elapsed({ since }: { readonly since: number }) {
  const now = useSignal(serviceNow())
  const update = async () => {
    now.value = serviceNow()
  }
  usePoll(1_000, update, [since])
  return (
    <span class="dim elapsed" title={`Since ${dateTimeText(since)}`}>
      for {durationText(Math.max(0, Math.floor(now.value - since)))}
    </span>
  )
}
