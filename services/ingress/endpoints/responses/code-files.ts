import { type CodeFile, RUN_FILES_BYTES_MAX, RUN_FILES_MAX } from '#schemas/code.ts'
import { CodeInterpreterTool, type ResponsesRequest } from '#schemas/responses/request.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { refuse } from '#services/ingress/endpoints/decode.ts'
import type { Caller } from '#services/ingress/endpoints/endpoint.ts'
import { getFile, requireFiles } from '#services/ingress/files/read.ts'
import { projectIdOf } from '#shared/keys/project.ts'

/** Maximum bytes of a file name, including its extension, before a number is added. File systems allow 255. */
const NAME_BYTES_MAX = 200
const ENDING_CHARS_MAX = 16
/**
 * Parts that are removed from file names: directories of any system, and invisible characters. The latter could break
 * or reverse the line that shows the name to a model, or make the model read another name than people see. Zero-width
 * joiners stay, because words and emoji need them.
 */
const NOT_A_NAME = /^.*[/\\]|[\p{Cc}\p{Zl}\p{Zp}]|(?![\u200c\u200d])\p{Cf}/gsu

/**
 * Files that the tools of a request place into the working directory of their code, under unique names.
 *
 * @throws ServiceError `not_found` for a file of another project; `array_above_max_length`; `invalid_value` if they are
 * too large
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
      const message = `The files of a code tool may have at most ${RUN_FILES_BYTES_MAX} bytes together; with this one, the sum is ${bytes}.`
      refuse('invalid_value', param, message)
    }
    const taken = new Set(files.map(({ name }) => name))
    files.push({ id, name: freeName(nameOf(file.filename), taken), bytes: file.bytes })
  }
  return files
}

/** Sentence about the files for the tool's description. */
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
      refuse('array_above_max_length', param, `A code tool may have at most ${RUN_FILES_MAX} files; got ${ids.length}.`)
    }
    return ids.map((id, nth) => ({ id, param: `${param}[${nth}]` }))
  })
  // Duplicate ids count once.
  return asked.filter(({ id }, at) => asked.findIndex((other) => other.id === id) === at)
}

function nameOf(filename: string): string {
  // Normalized, so that names that look equal are equal; the second one then gets a number.
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
