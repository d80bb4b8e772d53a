import type { GenerateEvent, GenerateRequest, HostedTool } from '#schemas/kinds/generate.ts'
import { objectIn } from '#shared/json/object.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'

/** Result of a hosted call: `status` and `output` for its item in the answer, `text` for the model. */
export interface HostedResult {
  readonly status: Extract<GenerateEvent, { type: 'hosted_result' }>['status']
  readonly output: Record<string, unknown>[]
  readonly text: string
}

/**
 * Arguments of a hosted call. Invalid arguments do not end the job. The model receives `problem` as the result of its call and can try
 * again.
 */
export interface HostedInput {
  readonly input: string
  readonly problem?: string
}

export interface HostedSettings {
  readonly codeSecondsMax: number
}

export interface HostedRunner {
  read(text: string): HostedInput
  child(input: string, tool: HostedTool, request: GenerateRequest, settings: HostedSettings): Omit<ChildJob, 'key'>
  result(end: Extract<ChildEnd, { state: 'completed' }>): HostedResult
}

export function notRun(problem: string): HostedResult {
  return { status: 'failed', output: [{ type: 'logs', logs: problem }], text: `Error: ${problem}` }
}

export function textField(json: string, name: string): string | undefined {
  // Invalid JSON is no error here, because the model receives the problem as the result of its call.
  const value = objectIn(json)?.[name]
  return typeof value === 'string' ? value.toWellFormed() : undefined
}
