import type { LlamaGrammar, Token } from 'node-llama-cpp'
import type { GenerateRequest, Tool } from '#schemas/generate.ts'
import { type Budget, getBudget } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/error.ts'
import { writeSchemaGrammar } from './grammar/grammar.ts'
import { JSON_OBJECT_GRAMMAR } from './grammar/rules.ts'
import { describeAnswer, describeCall, fittingTokensOf, offeredTools } from './prompt.ts'
import { rawTokensOf } from './raw.ts'
import type { LlamaCall, LlamaRuntime } from './runtime.ts'
import { chooseTool, nativeCallTokens } from './tools.ts'

export interface Plan {
  /** The called tool; undefined: the answer is text. */
  readonly tool: Tool | undefined
  /** Tools that the text may call in the template's form. */
  readonly callable: readonly Tool[]
  readonly prompt: readonly Token[]
  readonly grammar: LlamaGrammar | undefined
  readonly budget: Budget
}

/** @throws ServiceError for an unsupported request, before any output; the signal's reason */
export async function makePlan(call: LlamaCall): Promise<Plan> {
  const { runtime, request, signal } = call
  if (request.completion) {
    const prompt = await rawTokensOf(runtime, request, signal)
    return { tool: undefined, callable: [], prompt, budget: budgetOf(call, prompt), grammar: undefined }
  }
  const tool = await chooseTool(call)
  if (tool) {
    const prompt = runtime.format.tools
      ? await nativeCallTokens(call, tool.name)
      : await fittingTokensOf(runtime, describeCall(runtime, request, tool), signal)
    const grammar = await makeGrammar(runtime, request, tool)
    return { tool, callable: [], prompt, budget: budgetOf(call, prompt), grammar }
  }
  const callable = runtime.format.tools && !request.response_format ? offeredTools(request) : []
  // A schema that cannot be enforced is rejected before any output.
  for (const one of callable) if (one.strict) await makeGrammar(runtime, request, one)
  const prompt = await fittingTokensOf(runtime, describeAnswer(runtime, request), signal)
  const grammar = await makeGrammar(runtime, request, undefined)
  return { tool: undefined, callable, prompt, budget: budgetOf(call, prompt), grammar }
}

function budgetOf({ request, config, runtime }: LlamaCall, prompt: readonly Token[]): Budget {
  return getBudget(request, config, prompt.length, runtime.contextTokens)
}

/** Path of the schemas of a tool and of the answer in each API. */
const SCHEMA_PATHS: Readonly<Record<GenerateRequest['dialect'], { readonly tool: string; readonly format: string }>> = {
  openai: { tool: 'function.parameters', format: 'response_format.json_schema.schema' },
  anthropic: { tool: 'input_schema', format: 'output_config.format.schema' },
  responses: { tool: 'parameters', format: 'text.format.schema' },
}

/**
 * Arguments of a tool follow its schema as closely as a grammar can. Only a strict tool is rejected for an unsupported keyword, because
 * agents send many of them.
 */
export async function makeGrammar(
  { llama }: LlamaRuntime,
  request: GenerateRequest,
  tool: Tool | undefined,
): Promise<LlamaGrammar | undefined> {
  const format = request.response_format
  if (!tool && !format) return undefined
  const paths = SCHEMA_PATHS[request.dialect]
  const param = tool ? `tools[${request.tools.indexOf(tool)}].${paths.tool}` : paths.format
  const grammar = tool
    ? writeSchemaGrammar({ type: 'object', properties: {}, ...tool.parameters }, param, {
        isStrict: tool.strict === true,
      })
    : format?.type === 'json_schema'
      ? writeSchemaGrammar(format.schema, param)
      : JSON_OBJECT_GRAMMAR
  try {
    return await llama.createGrammar({ grammar })
  } catch (cause) {
    throw new ServiceError('invalid_value', 'The JSON schema is too complex for this model.', { cause, param })
  }
}
