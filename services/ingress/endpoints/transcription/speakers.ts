import type { TranscriptionBody } from '#schemas/transcription/body.ts'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { refuse } from '#services/ingress/endpoints/decode.ts'
import { ServiceError } from '#shared/error.ts'
import { base64OfUrl } from './json.ts'
import { AudioSniffer } from './sniff.ts'

const NAMES = 'known_speaker_names'
const REFERENCES = 'known_speaker_references'

/**
 * Pairs the names of known speakers with samples of their voices (docs/reference/compatibility.md, Transcription
 * fields). The worker checks the duration of a sample when it decodes the sample.
 *
 * @throws ServiceError `invalid_value`, `unsupported_value`, `invalid_audio` with the path of the first problem
 */
export function decodeSpeakers(asked: TranscriptionBody, diarize: boolean): TranscribeRequest['speakers'] {
  const names = asked.known_speaker_names ?? []
  const references = asked.known_speaker_references ?? []
  if (!diarize && names.length + references.length > 0) {
    const message = "Known speakers need response_format 'diarized_json'."
    refuse('unsupported_value', names.length > 0 ? NAMES : REFERENCES, message)
  }
  if (names.length !== references.length) {
    const message = `Expected a reference for each name, but got ${names.length} names and ${references.length} references.`
    refuse('invalid_value', names.length > references.length ? REFERENCES : NAMES, message)
  }
  requireUnique(names)
  return references.map((url, index) => ({ name: names[index] as string, reference: referenceOf(url, index) }))
}

function requireUnique(names: readonly string[]): void {
  const second = names.findIndex((name, index) => names.indexOf(name) !== index)
  if (second === -1) return
  const message = `Names of speakers must be unique, but '${excerpt(names[second] as string)}' occurs twice.`
  refuse('invalid_value', `${NAMES}[${second}]`, message)
}

function referenceOf(url: string, index: number): string {
  const param = `${REFERENCES}[${index}]`
  const base64 = base64OfUrl(url, param)
  const sniffer = new AudioSniffer(undefined)
  try {
    sniffer.push(Buffer.from(base64, 'base64'))
    sniffer.end()
  } catch (cause) {
    throw new ServiceError('invalid_audio', `Invalid '${param}': not audio in a known format.`, { cause, param })
  }
  return base64
}
