import type { GenerateEvent, GenerateRequest, HostedTool } from '#schemas/generate.ts'
import { objectIn } from '#shared/json/object.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'

/** What became of a hosted call: as its item shows it, and as the model reads it. */
export interface HostedResult {
  readonly status: Extract<GenerateEvent, { type: 'hosted_result' }>['status']
  readonly output: Record<string, unknown>[]
  readonly text: string
}

/** What a model asks a tool for, or what is wrong with it: what a model writes may be anything. */
export interface HostedInput {
  /** The code, or the query. */
  readonly input: string
  readonly problem?: string
}

/** What is set for all answers. */
export interface HostedSettings {
  /** Longest run of code, in seconds. */
  readonly codeSecondsMax: number
}

/** A tool as the service runs it: as a child in the pool that can. */
export interface HostedRunner {
  /** Reads the arguments of a call. */
  read(text: string): HostedInput
  /** The job of a call, but for its key. */
  child(input: string, tool: HostedTool, request: GenerateRequest, settings: HostedSettings): Omit<ChildJob, 'key'>
  /** What came of it. */
  result(end: Extract<ChildEnd, { state: 'completed' }>): HostedResult
}

/** A call that was not run, and why. */
export function notRun(problem: string): HostedResult {
  return { status: 'failed', output: [{ type: 'logs', logs: problem }], text: `Error: ${problem}` }
}

/** The text of a JSON object's field; undefined for what is none. */
export function textField(json: string, name: string): string | undefined {
  // Models write what is no JSON, and are told so.
  const value = objectIn(json)?.[name]
  return typeof value === 'string' ? value.toWellFormed() : undefined
}
