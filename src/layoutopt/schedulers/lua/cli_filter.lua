-- Installed as cli_filter.lua beside slurm.conf (CliFilterPlugins=lua). Made by layoutopt.
-- Runs in sbatch: a job with --comment=layoutopt:MODEL gets the best layout of its size as LAYOUT_*.
-- Fails open: without layoutopt, or when it is slow, the job goes on as it was.

local BIN = os.getenv("LAYOUTOPT_BIN") or "layoutopt"
local SECONDS = tonumber(os.getenv("LAYOUTOPT_TIMEOUT") or "") or 20

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

local function layout(model, nodes, per)
   -- model is letters, digits, dot, dash and underscore; the rest are numbers
   local command = string.format(
      "timeout %d %s env --model %s --nodes %d --gpus-per-node %d --plain 2>/dev/null",
      SECONDS, quoted(BIN), quoted(model), nodes, per)
   local pipe = io.popen(command)
   if not pipe then return nil end
   local found, any = {}, false
   for line in pipe:lines() do
      local name, value = line:match("^(LAYOUT_[A-Z_]+)=([%w%+%*:%-]+)$")
      if name then found[#found + 1] = name .. "=" .. value; any = true end
   end
   pipe:close()
   return any and found or nil
end

function slurm_cli_setup_defaults(options, early_pass) return slurm.SUCCESS end

function slurm_cli_pre_submit(options, pack_offset)
   if options["type"] ~= "sbatch" then return slurm.SUCCESS end
   local model = (options["comment"] or ""):match("^layoutopt:([%w%.%-_]+)$")
   if not model then return slurm.SUCCESS end
   local nodes = tonumber((options["nodes"] or ""):match("^(%d+)$"))
   local per = tonumber((options["gpus-per-node"] or ""):match("(%d+)$"))
   if not nodes or not per then
      slurm.log_info("layoutopt: no layout: give --nodes=N and --gpus-per-node=N")
      return slurm.SUCCESS
   end
   local ok, found = pcall(layout, model, nodes, per)
   if not ok or not found then
      slurm.log_info("layoutopt: no layout of %s on %d x %d GPUs; the job goes on without", model, nodes, per)
      return slurm.SUCCESS
   end
   options["export"] = "ALL," .. table.concat(found, ",")
   options["comment"] = "layoutopt=done"
   slurm.log_info("layoutopt: %s on %d x %d GPUs: %s", model, nodes, per, table.concat(found, " "))
   return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
