import { type CodeFile, RUN_FILES_BYTES_MAX, RUN_FILES_MAX } from '#schemas/code.ts'
import { CodeInterpreterTool, type ResponsesRequest } from '#schemas/responses/request.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { refuse } from '#services/ingress/endpoints/decode.ts'
import type { Caller } from '#services/ingress/endpoints/endpoint.ts'
import { getFile, requireFiles } from '#services/ingress/files/read.ts'
import { projectIdOf } from '#shared/keys/project.ts'

/** Bytes of a name in the directory of a run, its ending included, before a number is added: file systems take 255. */
const NAME_BYTES_MAX = 200
const ENDING_CHARS_MAX = 16
/**
 * Directories, on any system, and what nobody sees: it would break the line in which a model is told of a name, turn it round, or say
 * something else to the model than to people. Only joiners stay, by which words and emoji are written.
 */
const NOT_A_NAME = /^.*[/\\]|[\p{Cc}\p{Zl}\p{Zp}]|(?![\u200c\u200d])\p{Cf}/gsu

/**
 * The files that the tools of a request put into the directory of its code, under names that are different.
 *
 * @throws ServiceError `not_found` for one that is not of the caller's project; `array_above_max_length`; `invalid_value` for too much
 */
export async function codeFiles(
  context: IngressContext,
  { key }: Pick<Caller, 'key'>,
  tools: ResponsesRequest['tools'],
): Promise<CodeFile[]> {
  const files: CodeFile[] = []
  let bytes = 0
  for (const { id, param } of askedFor(tools ?? [])) {
    const file = await getFile(requireFiles(context), projectIdOf(key), id, param)
    bytes += file.bytes
    if (bytes > RUN_FILES_BYTES_MAX) {
      const message = `The files of code have ${RUN_FILES_BYTES_MAX} bytes together at most; with this one they have ${bytes}.`
      refuse('invalid_value', param, message)
    }
    const taken = new Set(files.map(({ name }) => name))
    files.push({ id, name: freeName(nameOf(file.filename), taken), bytes: file.bytes })
  }
  return files
}

/** What a model is told of them. */
export function describeFiles(files: readonly CodeFile[]): string {
  const shown = files.map(({ name, bytes }) => `${JSON.stringify(name)} (${bytes} bytes)`)
  return ` At the start of each call the working directory has these files: ${shown.join(', ')}.`
}

function askedFor(tools: NonNullable<ResponsesRequest['tools']>) {
  const asked = tools.flatMap((tool, at) => {
    const { container } = CodeInterpreterTool.safeParse(tool).data ?? {}
    const ids = typeof container === 'object' ? (container?.file_ids ?? []) : []
    const param = `tools[${at}].container.file_ids`
    if (ids.length > RUN_FILES_MAX) {
      refuse('array_above_max_length', param, `Code gets ${RUN_FILES_MAX} files at most, not ${ids.length}.`)
    }
    return ids.map((id, nth) => ({ id, param: `${param}[${nth}]` }))
  })
  // The same file twice is one.
  return asked.filter(({ id }, at) => asked.findIndex((other) => other.id === id) === at)
}

function nameOf(filename: string): string {
  // One of two that look the same gets a number.
  const name = filename.replaceAll(NOT_A_NAME, '').trim().normalize('NFC')
  if (name === '' || /^\.+$/.test(name)) return 'file'
  const [stem, ending] = split(name)
  return cut(stem, NAME_BYTES_MAX - Buffer.byteLength(ending)) + ending
}

function cut(text: string, bytesMax: number): string {
  let bytes = 0
  let kept = ''
  for (const character of text.toWellFormed()) {
    bytes += Buffer.byteLength(character)
    if (bytes > bytesMax) break
    kept += character
  }
  return kept
}

function freeName(name: string, taken: ReadonlySet<string>): string {
  const [stem, ending] = split(name)
  for (let nth = 2, free = name; ; nth++) {
    if (!taken.has(free)) return free
    free = `${stem}_${nth}${ending}`
  }
}

function split(name: string): [stem: string, ending: string] {
  const dot = name.lastIndexOf('.')
  return dot <= 0 || name.length - dot > ENDING_CHARS_MAX ? [name, ''] : [name.slice(0, dot), name.slice(dot)]
}
