import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { type Batch, fetchJson, type Model } from '#services/console/api/client.ts'
import { usdText } from '#services/console/api/clock.ts'
import { Dialog, FormActions, useAction } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'
import { cellText, customIdOf, FORM_KEY, TABLE_FILE_KEY } from '#shared/tables/answers.ts'
import { HEAD_BYTES, type Table, tableOf } from './table.ts'

const CHAT = '/v1/chat/completions'
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
      const read = await tableOf(chosen, chosen.name)
      table.value = read
      const column = promptColumnOf(read)
      task.value = { ...task.value, column }
    })
  const submit = async (event: SubmitEvent) => {
    event.preventDefault()
    const [chosen, rows] = [file.value, table.value]
    if (!chosen || action.problem.value !== '') return
    await action.run(async () => {
      const batch = rows
        ? await createFrom(requestsOf(rows, task.value), CHAT, chosen.name, {
            [TABLE_FILE_KEY]: await upload(chosen, 'user_data'),
            [FORM_KEY]: JSON.stringify({ prompt: [task.value.column] }),
          })
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

const PROMPT_NAMES = ['prompt', 'message', 'text', 'input', 'question', 'content']
const SAMPLE_ROWS = 20

/** Returns the column with a name in {@link PROMPT_NAMES}, otherwise the column with the longest texts in the first rows. */
function promptColumnOf({ columns, rows }: Table): string {
  const named = PROMPT_NAMES.flatMap((name) => columns.filter((column) => column.trim().toLowerCase() === name))
  const charsOf = (column: string) =>
    rows.slice(0, SAMPLE_ROWS).reduce((sum, cells) => sum + cellText(cells.get(column)).length, 0)
  return named[0] ?? columns.toSorted((a, b) => charsOf(b) - charsOf(a))[0] ?? ''
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
    .map((cells, nth) => ({ row: nth + 1, text: cellText(cells.get(column)) }))
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
    `${prompts.length.toLocaleString('en')} ${prompts.length === 1 ? 'request' : 'requests'}`,
    empty > 0 && `${empty.toLocaleString('en')} without a prompt`,
    `about ${tokens.toLocaleString('en')} input tokens`,
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
    return `${JSON.stringify({ custom_id: customIdOf(row), method: 'POST', url: CHAT, body })}\n`
  })
  if (lines.length === 0) throw new Error(`The column ${task.column} has no text.`)
  return new Blob(lines)
}

async function createFrom(
  content: Blob,
  endpoint: string,
  name: string,
  more: Readonly<Record<string, string>> = {},
): Promise<Batch> {
  const file = new File([content], name.replace(/\.(csv|tsv)$/i, '.jsonl'))
  const input_file_id = await upload(file, 'batch')
  const body = { input_file_id, endpoint, completion_window: '24h', metadata: { name, ...more } }
  return await fetchJson<Batch>('/v1/batches', { method: 'POST', body })
}

/** @returns Id of the file */
async function upload(file: File, purpose: 'batch' | 'user_data'): Promise<string> {
  const form = new FormData()
  form.append('purpose', purpose)
  form.append('file', file)
  return (await fetchJson<{ id: string }>('/v1/files', { method: 'POST', body: form })).id
}

/** Returns the `url` of the first request. The service reports all other problems of the file. */
function endpointIn(head: string): string {
  const [, url] = /"url"\s*:\s*"(\/[^"]{1,200})"/.exec(head.trimStart().split('\n', 1)[0] ?? '') ?? []
  return url ?? CHAT
}
