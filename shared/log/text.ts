import { stripVTControlCharacters, styleText } from 'node:util'

/* The log as text for a terminal; programs get JSON (`log.ts`). Both formats have the same content, except fields that every line repeats. */

const ERROR = 50
const LABELS: Readonly<Record<number, { label: string; colour: 'dim' | 'yellow' | 'red' }>> = {
  10: { label: 'TRACE ', colour: 'dim' },
  20: { label: 'DEBUG ', colour: 'dim' },
  40: { label: 'WARN ', colour: 'yellow' },
  50: { label: 'ERROR ', colour: 'red' },
  60: { label: 'FATAL ', colour: 'red' },
}

/**
 * Formats one JSON log line, such as `14:39:43 service ready role=ingress`.
 *
 * An error shows its message, and its stack from level `error` on. Control characters are removed, so that logged text cannot send commands to the
 * terminal.
 */
export function logText(json: string): string {
  const { level, time, service: _, msg, err, ...fields } = JSON.parse(json)
  const named = LABELS[level]
  const label = named ? styled(named.colour, named.label) : ''
  const clock = new Date(time).toLocaleTimeString('sv-SE')
  const why = err ? `: ${whyText(err)}` : ''
  const rest = Object.entries(fields).map(([name, value]) => ` ${name}=${valueText(value)}`)
  const stack = err?.stack && level >= ERROR ? `\n${String(err.stack).replace(/^/gm, '    ')}` : ''
  return `${styled('dim', clock)} ${label}${safe(`${msg}${why}${rest.join('')}${stack}`)}\n`
}

/** Messages of an error and its causes. */
function whyText({ message, code, type, cause }: Record<string, unknown>): string {
  const own = String(message ?? code ?? type)
  return cause ? `${own}: ${whyText(cause as Record<string, unknown>)}` : own
}

/** Words are unchanged. Other values are JSON, so that the reader can see where they end. */
function valueText(value: unknown): string {
  if (Array.isArray(value) && value.length > 0 && value.every(isWord)) return value.join(',')
  return isWord(value) ? value : JSON.stringify(value)
}

function isWord(value: unknown): value is string {
  return typeof value === 'string' && /^[!-~]+$/.test(value)
}

function safe(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
  return stripVTControlCharacters(text).replaceAll(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/g, '')
}

function styled(style: 'dim' | 'yellow' | 'red', text: string): string {
  return styleText(style, text, { stream: process.stdout })
}
