import { useSignal } from '@preact/signals'
import { parse } from 'csv-parse/browser/esm/sync'
import { useEffect } from 'preact/hooks'
import { type Batch, fetchJson, type Model } from '#services/console/api/client.ts'
import { usdText } from '#services/console/api/clock.ts'
import { Dialog, FormActions, useAction } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'

export const COMMAND = 'npx sluice batch prompts.csv --model MODEL --prompt-column prompt'
const CHAT = '/v1/chat/completions'
/** Maximum bytes of the file that are read to find the endpoint in its first line. */
const HEAD_BYTES = 256 * 1024
/** Maximum bytes of a table, whose rows are in the memory of the tab. */
const TABLE_BYTES_MAX = 20_000_000
const ROWS_MAX = 50_000
const CHARS_PER_TOKEN = 4
const PREVIEW_CHARS = 200

export function NewBatch() {
  const isOpen = useSignal(false)
  const close = () => {
    isOpen.value = false
  }
  return (
    <>
      <button
        type="button"
        class="primary"
        onClick={() => {
          isOpen.value = true
        }}
      >
        New batch
      </button>
      {isOpen.value && (
        <Dialog title="New batch" onClose={close}>
          {(closeDialog) => <Form close={closeDialog} />}
        </Dialog>
      )}
    </>
  )
}

interface Table {
  readonly columns: readonly string[]
  readonly rows: readonly Readonly<Record<string, string>>[]
}

/** How the rows of a table become requests. */
interface Task {
  readonly model: string
  readonly column: string
  readonly system: string
}

function Form({ close }: { readonly close: () => void }) {
  const action = useAction()
  const file = useSignal<File | undefined>(undefined)
  const table = useSignal<Table | undefined>(undefined)
  const task = useSignal<Task>({ model: '', column: '', system: '' })
  const choose = (chosen: File | undefined) =>
    action.run(async () => {
      file.value = chosen
      table.value = undefined
      if (!chosen || /\.(jsonl|ndjson)$/i.test(chosen.name)) return
      const read = await tableOf(chosen)
      table.value = read
      const column = read.columns.find((name) => name.toLowerCase() === 'prompt') ?? read.columns[0] ?? ''
      task.value = { ...task.value, column }
    })
  const submit = async (event: SubmitEvent) => {
    event.preventDefault()
    const [chosen, rows] = [file.value, table.value]
    if (!chosen || action.problem.value !== '') return
    await action.run(async () => {
      const batch = rows
        ? await createFrom(requestsOf(rows, task.value), CHAT, chosen.name)
        : await createFrom(chosen, endpointIn(await chosen.slice(0, HEAD_BYTES).text()), chosen.name)
      close()
      navigate(`${BASE}/batches/${batch.id}`)
    })
  }
  return (
    <form class="fields" onSubmit={(event) => void submit(event)}>
      <label>
        <span>File with one prompt or request per row</span>
        <input
          type="file"
          accept=".csv,.tsv,.jsonl,.ndjson"
          required
          onChange={({ currentTarget }) => void choose(currentTarget.files?.[0])}
        />
        <small class="dim">CSV or TSV with a header, or JSONL with one request of the API per line</small>
      </label>
      {table.value && (
        <TableFields
          table={table.value}
          task={task.value}
          set={(change) => {
            task.value = { ...task.value, ...change }
          }}
        />
      )}
      <FormActions action={action} verb="Create" close={close} />
    </form>
  )
}

interface TableFieldsProps {
  readonly table: Table
  readonly task: Task
  readonly set: (change: Partial<Task>) => void
}

function TableFields({ table, task, set }: TableFieldsProps) {
  const models = useSignal<readonly Model[]>([])
  useEffect(() => {
    const abort = new AbortController()
    fetchJson<{ data: readonly Model[] }>('/v1/models', { signal: abort.signal }).then(
      ({ data }) => {
        models.value = data.filter(({ capabilities }) => capabilities.includes('chat'))
        set({ model: models.value[0]?.id ?? '' })
      },
      // If the list of models cannot be loaded, then the user types the model, and the service checks the name.
      () => {},
    )
    return () => abort.abort()
  }, [])
  const prompts = promptsOf(table, task)
  return (
    <>
      <div class="pair">
        <label>
          <span>Model</span>
          <input
            list="batch-models"
            required
            autocomplete="off"
            value={task.model}
            onInput={({ currentTarget }) => set({ model: currentTarget.value })}
          />
          <datalist id="batch-models">
            {models.value.map(({ id }) => (
              <option key={id} value={id} />
            ))}
          </datalist>
        </label>
        <label>
          <span>Column with the prompt</span>
          <select value={task.column} onChange={({ currentTarget }) => set({ column: currentTarget.value })}>
            {table.columns.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      <label>
        <span>Instruction for all rows</span>
        <textarea
          rows={2}
          placeholder="Optional, such as: Answer with one word."
          value={task.system}
          onInput={({ currentTarget }) => set({ system: currentTarget.value })}
        />
      </label>
      <p class="dim" aria-live="polite">
        {estimateOf(table, prompts, task, models.value.find(({ id }) => id === task.model)?.price)}
      </p>
      {prompts[0] && (
        <p class="dim prompt-preview">
          First prompt: <q>{prompts[0].text.slice(0, PREVIEW_CHARS)}</q>
        </p>
      )}
    </>
  )
}

/** Prompts that are not empty, with the number of their row as in `sluice batch`. */
function promptsOf({ rows }: Table, { column }: Task): { readonly row: number; readonly text: string }[] {
  return rows
    .map((cells, nth) => ({ row: nth + 1, text: cells[column] ?? '' }))
    .filter(({ text }) => text.trim() !== '')
}

function estimateOf(
  { rows }: Table,
  prompts: readonly { readonly text: string }[],
  { system }: Task,
  price: Model['price'],
): string {
  const chars = prompts.reduce((sum, { text }) => sum + text.length + system.length, 0)
  const tokens = Math.ceil(chars / CHARS_PER_TOKEN)
  const usd = price && (tokens * price.input_per_million) / 1e6 + prompts.length * price.per_call
  const empty = rows.length - prompts.length
  return [
    `${prompts.length.toLocaleString()} ${prompts.length === 1 ? 'request' : 'requests'}`,
    empty > 0 && `${empty.toLocaleString()} without a prompt`,
    `about ${tokens.toLocaleString()} input tokens`,
    usd !== undefined && `about ${usdText(usd)} plus output tokens`,
  ]
    .filter(Boolean)
    .join(', ')
}

function requestsOf(table: Table, task: Task): Blob {
  const { model, system } = task
  const first = system.trim() === '' ? [] : [{ role: 'system', content: system }]
  const lines = promptsOf(table, task).map(({ row, text }) => {
    const body = { model, messages: [...first, { role: 'user', content: text }] }
    return `${JSON.stringify({ custom_id: `row-${row}`, method: 'POST', url: CHAT, body })}\n`
  })
  if (lines.length === 0) throw new Error(`The column ${task.column} has no text.`)
  return new Blob(lines)
}

/** Reads a CSV or TSV file. @throws Error with the problem of the file */
async function tableOf(file: File): Promise<Table> {
  if (file.size > TABLE_BYTES_MAX) {
    const size = `${Math.ceil(file.size / 1e6).toLocaleString()} MB`
    throw new Error(`The file has ${size}, too much for a browser. Run: ${COMMAND}`)
  }
  const text = await textOf(file)
  let columns: readonly string[] = []
  const rows = parse(text, {
    bom: true,
    delimiter: delimiterOf(text),
    skip_empty_lines: true,
    columns: (header: string[]) => {
      columns = header
      return header
    },
  }) as Record<string, string>[]
  const twice = columns.find((name, nth) => columns.indexOf(name) !== nth)
  if (twice !== undefined) throw new Error(`The header has the column "${twice}" twice.`)
  if (rows.length === 0) throw new Error('The file has no rows below its header.')
  if (rows.length > ROWS_MAX)
    throw new Error(
      `The file has ${rows.length.toLocaleString()} rows; the maximum of a batch is 50,000. Split the file.`,
    )
  return { columns, rows }
}

async function textOf(file: File): Promise<string> {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer())
  } catch {
    throw new Error('The file is not UTF-8. Save it as "CSV UTF-8" in the spreadsheet.')
  }
}

/** The most frequent separator of the header. Spreadsheets separate by `;` in countries with a decimal comma. */
function delimiterOf(text: string): string {
  const [line = ''] = text
    .slice(0, HEAD_BYTES)
    .replaceAll(/"[^"]*"/g, '')
    .split(/\r?\n/, 1)
  const counted = [',', ';', '\t'].map((mark) => ({ mark, count: line.split(mark).length }))
  return counted.reduce((best, one) => (one.count > best.count ? one : best)).mark
}

async function createFrom(content: Blob, endpoint: string, name: string): Promise<Batch> {
  const form = new FormData()
  form.append('purpose', 'batch')
  form.append('file', content, name.replace(/\.(csv|tsv)$/i, '.jsonl'))
  const { id } = await fetchJson<{ id: string }>('/v1/files', { method: 'POST', body: form })
  const body = { input_file_id: id, endpoint, completion_window: '24h', metadata: { name } }
  return await fetchJson<Batch>('/v1/batches', { method: 'POST', body })
}

/** Returns the `url` of the first request. The service reports all other problems of the file. */
function endpointIn(head: string): string {
  const [, url] = /"url"\s*:\s*"(\/[^"]{1,200})"/.exec(head.trimStart().split('\n', 1)[0] ?? '') ?? []
  return url ?? CHAT
}
